"""The report: one result document → one self-contained HTML page, a pure function of the document.

`series` reads columns from the document, `charts` draws them, `reasons` words the decisions. `template` is
the skeleton of all pages, those of the other comparisons among them (`routings`, `queue_sim`). `wall_s` is
left out, so that the same input gives the same bytes.
"""
