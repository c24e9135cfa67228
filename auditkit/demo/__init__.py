"""A demo with planted truth: auditkit draws the images, so it knows where the object and the tag are."""
