"""What is drawn in report.html: places in per cent and words, worked out here, drawn by templates."""
