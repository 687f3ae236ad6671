"""One router a module; routes parse, call and shape the answer."""
