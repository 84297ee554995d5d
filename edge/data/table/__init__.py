"""Tables of ratings: files of any layout, which column is what, and their ids, ratings and times."""
