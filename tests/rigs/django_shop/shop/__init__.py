"""The project, which is its only app as well."""
