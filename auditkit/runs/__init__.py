"""Work over whole sets of images."""
