"""What happened in a run: events, their files, reports, profiles.   (pure, but for the files)"""
