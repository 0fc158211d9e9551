"""Data: the templates, which the wheel carries as the package `rhinoctl_data.templates`."""
