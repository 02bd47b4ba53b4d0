pub fn run_chore()->anyhow::Result<()> {Ok(())}
