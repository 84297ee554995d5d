"""What must hold of every run, whatever went wrong in it."""
