"""An embedded, durable timer store."""
