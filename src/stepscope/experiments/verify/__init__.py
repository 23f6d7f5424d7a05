"""Both sides run in turn until a gain is proven, or not."""
