"""What trace readers share: columns of events, put together into a Trace."""
