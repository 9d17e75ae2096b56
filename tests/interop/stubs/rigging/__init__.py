"""As much of rigging as levanter's store imports."""
