"""Adapters to the store: Redis or Valkey."""
