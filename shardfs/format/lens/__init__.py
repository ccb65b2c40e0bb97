"""Lenses: how the documents that are stored are shown in a view, and how an edit of what is shown becomes stored.

Pure functions in pairs.  One direction makes what is shown from what is stored, or raises the reason why nothing is
shown.  The other takes what a program wrote over that, and returns the document to be stored, or raises the reason why
it is refused.  What was not edited comes back as it is stored, spelling included.
"""
