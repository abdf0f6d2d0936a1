"""Wires that leave the process: brokers and Spark."""
