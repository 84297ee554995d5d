"""Tables of ratings: files of any common layout, which column is what, and the ids, ratings and times in them."""
