"""`stepscope mcp`: the tools that an agent gets, and what they may reach."""
