"""Pages for people: directories, arrays, and pictures of their planes.

`page` makes the HTML of a directory, with `viewers`: links to third-party programs. `planes` answers requests for a
picture: `pyramid` finds the level of an image that fits, `plane` reads its elements from decoded chunk files, as any
client could, and `picture` makes a PNG of them.
"""
