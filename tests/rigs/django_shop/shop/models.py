"""What tasks have done, a row each."""

from django.db import models


class Ran(models.Model):
    """A run of a task."""

    what = models.TextField()
