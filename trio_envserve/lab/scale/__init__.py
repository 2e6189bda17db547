"""How much one router carries: thousands of clients, hundreds of hosts, very many rollouts."""
