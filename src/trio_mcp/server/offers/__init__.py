"""What authors declare: tools, resources, prompts, skills and apps, and who sees them."""
