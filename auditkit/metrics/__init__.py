"""What is measured: arrays in, arrays out; no model, no file, no clock."""
