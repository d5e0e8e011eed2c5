"""A mailer whose letters survive the program, with retries that wait longer each time.

    python examples/mailer.py FOLDER

puts two letters, then sends what is due until it is interrupted. Start it again with the same
folder, and it goes on where it was.
"""

from __future__ import annotations

import json
import logging
import smtplib
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from email.message import EmailMessage

import timerstore

Send = Callable[[EmailMessage], None]
PERMANENT = 500  # an SMTP status of 500 or more says: do not try again


def put_letter(
    store: timerstore.TimerStore, to: str, subject: str, text: str, delay: timedelta
) -> str:
    """Have a letter sent after a while; return the id by which it can be cancelled."""
    body = json.dumps({"to": to, "subject": subject, "text": text}).encode()
    return store.put(body, topic="letters", delay=delay, key=to)


def make_mailer(store: timerstore.TimerStore, send: Send) -> timerstore.Consumer:
    """Return a consumer that sends letters, eight at a time."""
    mailer = timerstore.Consumer(store, "mailer", threads=8, max_attempts=10)

    @mailer.on("letters")
    def deliver(d: timerstore.Delivery) -> timerstore.Retry | None:
        fields = json.loads(d.body)
        letter = EmailMessage()
        letter["To"], letter["Subject"] = fields["to"], fields["subject"]
        # A letter may be sent twice after a crash. The id stays the same, and mail servers know it.
        letter["Message-ID"] = f"<{d.id}@mailer.example>"
        letter.set_content(fields["text"])
        try:
            send(letter)
        except smtplib.SMTPResponseException as e:
            if e.smtp_code >= PERMANENT:
                return timerstore.Retry(delay_level=-1)  # to %DLQ%mailer, for a person to look at
            raise
        return None  # any other exception: it comes again after 10 s, 30 s, 1 min, 2 min, …

    return mailer


def send_by_smtp(letter: EmailMessage) -> None:
    """Send through the mail server of this machine."""
    with smtplib.SMTP("localhost", timeout=30) as server:
        server.send_message(letter, from_addr="mailer@example.org")


def main() -> None:
    """Put some letters, then send what is due."""
    logging.basicConfig(level=logging.INFO)
    with timerstore.open(sys.argv[1]) as store, make_mailer(store, send_by_smtp):
        put_letter(store, "ann@example.org", "Welcome", "Hello!", timedelta(seconds=2))
        put_letter(store, "ben@example.org", "Your trial ends", "Soon.", timedelta(days=13))
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print(store.count("letters"), "letters are still to be sent")


if __name__ == "__main__":
    main()
