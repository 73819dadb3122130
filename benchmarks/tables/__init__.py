"""What the committed results say about the papers' tables."""
