"""What becomes of messages on their way in and out: payload, headers, ack requests, enforcement."""
