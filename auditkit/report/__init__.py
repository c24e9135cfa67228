"""One result, many renderings; none of them needs the model or computes a figure anew."""
