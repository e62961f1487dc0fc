"""Tables: kinds of columns, their encoding as states of the visible units, and machines fitted to them."""
