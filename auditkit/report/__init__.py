"""One result, many renderings; none of them needs the model or recomputes a metric."""
