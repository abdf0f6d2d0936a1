"""The search index in an SQL database: SQLite or PostgreSQL behind one interface."""
