"""Texts such as ``{{ header:x | fn:upper() }}``, and what they stand for."""
