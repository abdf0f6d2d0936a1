"""The systems ackgate is measured against: small, complete, and not crippled."""
