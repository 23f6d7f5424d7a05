"""Rules about kernels that arithmetic limits."""
