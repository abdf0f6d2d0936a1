"""HTTP push."""
