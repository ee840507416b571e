"""The report: one result document → one self-contained HTML page, a pure function of the document.

`series` reads columns from the document, `charts` describes figures for `charts.js`, and `template` is the
skeleton of all pages. `wall_s` is left out, so that the same input gives the same bytes.
"""
