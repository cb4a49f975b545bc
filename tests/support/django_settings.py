"""The smallest Django project that `django_celery_beat` runs in; its database is a file that a test names."""

import os

SECRET_KEY = "only for tests"
INSTALLED_APPS = ["django_celery_beat"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("DJANGO_DATABASE", ":memory:"),
        # Replicas write to one file; each waits for the other.
        "OPTIONS": {"timeout": 20},
    }
}
USE_TZ = True
TIME_ZONE = "UTC"
