"""Engines: run the units of a job in several processes, on one machine or on a Ray cluster."""
