"""Commands that set up what they need by themselves: only Python 3.11 and its standard library stand below them."""
