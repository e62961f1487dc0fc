"""Where rows come from: named data sets, file formats, rows on disk."""
