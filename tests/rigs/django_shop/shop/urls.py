"""A web page that enqueues a task, and says which."""

from django.http import HttpRequest, HttpResponse
from django.urls import path

from shop import tasks


def enqueue(request: HttpRequest, what: str) -> HttpResponse:
    return HttpResponse(tasks.note.enqueue(what).id)


urlpatterns = [path("enqueue/<str:what>", enqueue)]
