"""What things are: pure data and pure rules. No I/O, no clock, no client; everything else imports this."""
