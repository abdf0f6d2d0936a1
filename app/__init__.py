"""The process: wires for clients, the store, and the one path between them."""
