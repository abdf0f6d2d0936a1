"""The JSON documents of connections: read, checked, shown."""
