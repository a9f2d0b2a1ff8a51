"""What server authors register: tools, resources, prompts, skills and apps, and which callers can see them."""
