"""One benchmark per file; a package, so that a file may be called like a module of the standard library."""
