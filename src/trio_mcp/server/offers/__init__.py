"""What authors declare: tools, resources, prompts, skills and apps, and which callers can see them."""
