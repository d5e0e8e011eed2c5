"""Settings. The project's data are in the folder SHOP; SHOP_OPTIONS, JSON, are more options."""

import importlib.util
import json
import os
from pathlib import Path

import timerstore

DATA = Path(os.environ["SHOP"])
STORE = timerstore.Config(
    durability=os.environ.get("SHOP_DURABILITY", "process"), delay_levels="1s 1s 1s 1s"
)
OPTIONS = {"path": DATA / "timers", "config": STORE} | json.loads(
    os.environ.get("SHOP_OPTIONS", "{}")
)
TASKS = {
    "default": {
        "BACKEND": "timerstore.django.TimerStoreBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {name: value for name, value in OPTIONS.items() if value is not None},
    }
}
INSTALLED_APPS = ["timerstore.django", "shop"]
if importlib.util.find_spec("django.tasks") is None:
    INSTALLED_APPS.append("django_tasks")
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": DATA / "db.sqlite3",
        "OPTIONS": {"timeout": 30, "init_command": "pragma journal_mode = wal"},
    }
}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["console"], "level": "INFO"},
}
ROOT_URLCONF = "shop.urls"
ALLOWED_HOSTS = ["127.0.0.1"]
SECRET_KEY = "of a test"
USE_TZ = os.environ.get("SHOP_USE_TZ", "1") == "1"
TIME_ZONE = "Asia/Tokyo"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
