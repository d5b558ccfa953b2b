"""Whether a setup trains: pure judgements on readings. No I/O."""
