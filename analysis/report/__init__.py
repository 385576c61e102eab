"""A run, a sweep or a validation as one HTML page that needs nothing beside itself."""
