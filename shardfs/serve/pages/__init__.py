"""Pages for people: directories, arrays, and pictures of their planes.

| module | what it knows |
|---|---|
| `query` | the fields of an address, and the plane that they mean |
| `units`, `variable`, `coordinates` | times, degrees and units; what elements mean; what an index stands for |
| `plane`, `axes` | reading elements, and coordinates, from decoded chunk files, as any client could |
| `pyramid` | images of OME-Zarr: levels, channels, labels |
| `colors`, `picture`, `plots` | from numbers to PNG and SVG |
| `scene`, `planes` | what one request shows, and the answers to requests |
| `html`, `form`, `describe`, `tables`, `group`, `viewers`, `page` | HTML: a page and its parts |

The server computes everything; `page.js` asks for it again, and puts it where the server says. What is pure has no
`async`.
"""
