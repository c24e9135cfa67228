"""The planted truth: images whose object and tag this code put there itself."""
