"""What follows an event: requests are placed, held, shed or tried again."""
